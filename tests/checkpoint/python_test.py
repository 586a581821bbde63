"""Python's torch and C++ read each other's checkpoints.

    python_test.py PROGRAM
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
if os.environ.get("TUTTI_TEST_PYTHON") != sys.executable:  # by the Python that has torch
    sys.path.insert(0, str(HERE.parent / "e2e"))
    import foreign
    try:
        FOLDER, ENVIRONMENT = foreign.python_torch()
    except foreign.Skipped as why:
        print(f"SKIPPED: {why}")
        sys.exit(foreign.SKIPPED)
    PYTHON = f"{FOLDER}/bin/python3"
    os.execve(PYTHON, [PYTHON, *sys.argv], dict(ENVIRONMENT, TUTTI_TEST_PYTHON=PYTHON, OMP_NUM_THREADS="1"))

import torch

import files

PROGRAM = sys.argv[1]
PROCESSES = {}  # those that run, by model
SAFETENSORS = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "U16": torch.uint16,
    "U32": torch.uint32, "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def bits(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def read_safetensors(path):
    """As the format's description has it."""
    content = pathlib.Path(path).read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    tensors = {}
    for name, entry in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = (begin + offset for offset in entry["data_offsets"])
        dtype = SAFETENSORS[entry["dtype"]]
        assert first % torch.empty(0, dtype=dtype).element_size() == 0, name
        tensors[name] = torch.frombuffer(bytearray(content[first:end]) or bytearray(16), dtype=dtype)[:(end - first)].reshape(entry["shape"]) \
            if end > first else torch.empty(entry["shape"], dtype=dtype)
    return tensors


def write_safetensors(path, tensors):
    names, header, data = {dtype: name for name, dtype in SAFETENSORS.items()}, {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        content = bytes(bits(tensor).tolist())
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        files.write(cls.folder)

    def ask(self, *words, model="net"):
        """What it says."""
        if model not in PROCESSES:
            PROCESSES[model] = subprocess.Popen([PROGRAM, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = PROCESSES[model]
        print(*words, sep="\t", file=process.stdin, flush=True)
        said = "".join(iter(process.stdout.readline, "== done\n"))
        self.assertIsNone(process.poll(), said)
        return said

    def do(self, *words, **model):
        self.assertEqual(self.ask(*words, **model), "")

    def assert_same(self, ours, theirs):
        self.assertEqual(set(ours), set(theirs))
        for name, tensor in theirs.items():
            self.assertEqual((ours[name].dtype, ours[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertTrue(torch.equal(bits(ours[name]), bits(tensor)), name)

    def evaluate(self, model, file, *key, name="net", shape=(4, 1, 4, 4), tolerance=1e-6):
        """C++ computes the same with `file`, and what it saves is `model` in Python again."""
        inputs, outputs = self.folder / "inputs.pt", self.folder / "outputs.pt"
        x = torch.randn(shape)
        torch.save({"x": x}, inputs)
        model.eval()
        with torch.no_grad():
            expected = model(x)
        for saved in (self.folder / "saved.pt", self.folder / "saved.safetensors"):
            self.do(file, inputs, outputs, saved, *key, model=name)
            off = (torch.load(outputs, weights_only=True)["y"] - expected).abs().max().item()
            self.assertLessEqual(off, tolerance, file.name)
            state = read_safetensors(saved) if saved.suffix == ".safetensors" else torch.load(saved, weights_only=True)
            self.assert_same(state, model.state_dict())
            model.load_state_dict(state)  # strict
        return off


class Tensors(Case):
    def test_odd_ones_there_and_back(self):
        source, copy = self.folder / "odd.pt", self.folder / "copy.pt"
        self.do(source, copy)
        for how in ({}, {"mmap": True}):
            self.assert_same(torch.load(copy, weights_only=True, **how), files.odd_tensors())
        self.do(copy, self.folder / "again.pt")
        self.assertEqual(copy.read_bytes(), (self.folder / "again.pt").read_bytes())

    def test_safetensors_there_and_back(self):
        tensors = {name: tensor for name, tensor in files.odd_tensors().items() if tensor.dtype != torch.complex128}
        source, copy = self.folder / "odd.safetensors", self.folder / "copy.safetensors"
        write_safetensors(source, tensors)
        self.do(source, copy)
        self.assert_same(read_safetensors(copy), tensors)

    def test_our_zip_is_one_for_others(self):
        copy = self.folder / "copy.pt"
        self.do(self.folder / "net.pt", copy)
        self.assertIsNone(zipfile.ZipFile(copy).testzip())  # checksums, too
        if shutil.which("unzip"):
            subprocess.run(["unzip", "-tq", copy], check=True, stdout=subprocess.DEVNULL)


class Nets(Case):
    def test_files_of_python(self):
        model, _ = files.trained()
        for name in ("net.pt", "net_of_ddp.pt", "net_protocol_4.pt", "net_protocol_5.pt", "net_parameters.pt", "run.pt", "run_of_ddp.pt"):
            self.evaluate(model, self.folder / name)
        self.evaluate(model, self.folder / "two.pt", "ema")
        self.evaluate(model, self.folder / "run.pt", "model")

    def test_safetensors(self):
        model, _ = files.trained()
        write_safetensors(self.folder / "net.safetensors", model.state_dict())
        self.evaluate(model, self.folder / "net.safetensors")

    def zipped_again(self, name, how=zipfile.ZIP_STORED, **changed):
        with zipfile.ZipFile(self.folder / "net.pt") as old, zipfile.ZipFile(self.folder / name, "w", how) as new:
            for entry in old.namelist():
                new.writestr(entry, changed.get(entry.split("/")[-1], old.read(entry)))
        return self.folder / name

    def test_a_zip_that_others_have_made(self):
        """Its tensors stand at any offset."""
        self.evaluate(files.trained()[0], self.zipped_again("zipped.pt"))

    def test_refusals(self):
        nothing = [self.folder / name for name in ("inputs.pt", "none.pt", "none.pt")]

        def refused(name, *parts):
            said = self.ask(self.folder / name, *nothing)
            for part in parts:
                self.assertIn(part, said)

        self.zipped_again("big.pt", byteorder="big")
        self.zipped_again("deflated.pt", how=zipfile.ZIP_DEFLATED)
        refused("two.pt", "more than one state_dict", "'model', 'ema'")
        refused("legacy.pt", "before torch 1.6", "torch.save(torch.load(FILE, weights_only=True), FILE)")
        refused("module.pt", "an object of torch.nn.modules.container.Sequential", "torch.save(model.state_dict(), FILE)")
        refused("tensor.pt", "no dictionary")
        refused("optimizer.pt", "has no state_dict", "'state', 'param_groups'")
        refused("jit.pt", "torch::load reads it")
        refused("big.pt", "another order of bytes")
        refused("deflated.pt", "compressed")
        self.assertFalse((self.folder / "none.pt").exists())
        said = self.ask(self.folder / "sparse.pt", self.folder / "none.pt")
        for part in ("emb is a sparse tensor", "q is a quantised tensor", "meta is a meta tensor"):
            self.assertIn(part, said)

    def test_what_does_not_fit_is_what_python_names(self):
        said = self.ask(self.folder / "wrong.pt", "-", "-", "-")
        state = torch.load(self.folder / "wrong.pt", weights_only=True)
        fitting = {name: what for name, what in state.items() if name not in ("conv.weight", "bn.weight")}  # which are there, and do not fit
        keys = files.net().load_state_dict(fitting, strict=False)
        missing = said.split("missing in the file: ")[1].split("\n")[0].split(", ")
        self.assertEqual(set(missing), set(keys.missing_keys) - {"conv.weight", "bn.weight"})
        self.assertEqual(keys.unexpected_keys, ["head.weight"])
        for part in ("unknown to the model: head.weight\n", "bn.weight is no tensor", "conv.weight [4, 1, 5, 5], in the model [4, 1, 3, 3]",
                     "conv.bias Double, in the model Float"):
            self.assertIn(part, said)


class ResNet18(Case):
    def test_there_and_back(self):
        try:
            from torchvision.models import resnet18
        except ImportError as why:
            self.skipTest(f"torchvision is missing ({why}): tools/python_torch.sh third_party makes an environment with it")
        torch.manual_seed(3)
        model = resnet18(num_classes=10)
        model.conv1 = torch.nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
        for _ in range(2):  # statistics that are not those of the beginning
            model(torch.randn(8, 1, 28, 28))
        plain, of_ddp = self.folder / "resnet18.pt", self.folder / "resnet18_of_ddp.pt"
        torch.save({"model": model.state_dict(), "epoch": 3}, plain)
        torch.save({f"module.{name}": tensor for name, tensor in model.state_dict().items()}, of_ddp)
        for file in (plain, of_ddp):
            off = self.evaluate(model, file, name="resnet", shape=(16, 1, 28, 28), tolerance=1e-5)
            print(f"{file.name}: outputs differ by {off:.1e} at most")


def tearDownModule():
    for process in PROCESSES.values():
        process.communicate()
        assert process.returncode == 0


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[2:]])
