"""Three models for images of 1 x 28 x 28 and ten classes. Nothing here knows of ranks."""
import torch
from torch import nn


def cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
                         nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10))


class Block(nn.Module):
    def __init__(self, channels, to, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, to, 3, stride, padding=1, bias=False), nn.BatchNorm2d(to), nn.ReLU(),
            nn.Conv2d(to, to, 3, padding=1, bias=False), nn.BatchNorm2d(to))
        self.shortcut = nn.Identity()
        if stride > 1 or channels != to:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, to, 1, stride, bias=False), nn.BatchNorm2d(to))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet():
    """ResNet-18 as for small images: no pooling before the blocks."""
    blocks, channels = [], 64
    for to in (64, 128, 256, 512):
        blocks += [Block(channels, to, 1 if to == channels else 2), Block(to, to, 1)]
        channels = to
    return nn.Sequential(nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Transformer(nn.Module):
    """Reads an image as 28 tokens, its rows."""

    def __init__(self, width=128, heads=4, layers=3):
        super().__init__()
        self.embed = nn.Linear(28, width)
        self.position = nn.Parameter(0.02 * torch.randn(28, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True) for _ in range(layers))
        self.classes = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images):
        x = self.embed(images.squeeze(1)) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.classes(x.mean(dim=1))


MODELS = {"cnn": cnn, "resnet": resnet, "transformer": Transformer}
SHARDED = (Block, nn.TransformerEncoderLayer)  # a unit of FSDP2 each
