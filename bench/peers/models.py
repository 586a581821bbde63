"""The models of models.h, layer by layer in the same order: one seed gives both the same parameters."""
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048),
                         nn.ReLU(), nn.Linear(2048, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
                         nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10))


def convolution(source, to, width, stride):
    return nn.Conv2d(source, to, width, stride=stride, padding=width // 2, bias=False)


class Block(nn.Module):
    def __init__(self, source, to, stride):
        super().__init__()
        self.body = nn.Sequential(convolution(source, to, 3, stride), nn.BatchNorm2d(to), nn.ReLU(), convolution(to, to, 3, 1),
                                  nn.BatchNorm2d(to))
        self.shortcut = None
        if source != to:
            self.shortcut = nn.Sequential(convolution(source, to, 1, stride), nn.BatchNorm2d(to))

    def forward(self, x):
        return torch.relu(self.body(x) + (self.shortcut(x) if self.shortcut else x))


def resnet18():
    return nn.Sequential(convolution(1, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
                         Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1), Block(128, 256, 2),
                         Block(256, 256, 1), Block(256, 512, 2), Block(512, 512, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(512, 10))
