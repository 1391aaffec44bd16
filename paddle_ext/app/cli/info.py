"""``paddle-ext info``: the installation, a feature bank, or the options of a method."""

import importlib.util
import inspect
import platform
from pathlib import Path
from typing import Annotated

from . import options as o
from . import show

# The purpose of each library, and the extra that installs it.
LIBRARIES = {
    "rich": ("progress bars and tables", "cli"),
    "matplotlib": ("figures, and the characters of the demo", "cli"),
    "PIL": ("decoding and drawing images", "images"),
    "safetensors": ("networks, and banks in .safetensors", "data"),
    "sklearn": ("PaddleClassifier", "sklearn"),
    "easyfsl": ("the adapter to easyfsl", "easyfsl"),
    "pyarrow": ("tables of any format", "classify"),
    "pillow_heif": ("photos in HEIC", "heic"),
    "sentence_transformers": ("text embeddings", "text"),
    "efficientnet_lite_pytorch": ("the default network of paddle-ext classify", "classify"),
}


def info(
    bank: Annotated[Path | None, o.about("Describe this feature bank.")] = None,
    /,
    *,
    method: Annotated[str | None, o.about("List the options of this method.")] = None,
) -> None:
    """Show the installation, describe a feature bank, or list the options of a method.

    Examples
    --------
    paddle-ext info
    paddle-ext info bank.npz
    paddle-ext info --method tim
    """
    if bank is not None:
        describe_bank(bank)
    if method is not None:
        describe_method(method)
    if bank is None and method is None:
        describe_installation()


def describe_installation() -> None:
    import torch

    from ... import methods
    from ...native.load import build_info
    from ...research.tables import title_of

    about = build_info()
    cuda = f"CUDA {about['cuda_version']}" if about["cuda"] else "without CUDA"
    rows = [
        ("paddle_ext", f"{about['version']}, {cuda}, SIMD level {about['simd']}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("Python", f"{platform.python_version()}, {platform.machine()}"),
        ("device", "cpu"),
    ]
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            memory = f"{gpu.total_memory / 2**30:.0f} GiB"
            rows.append(("device", f"cuda:{number}, {gpu.name}, {memory}"))
    for name, (purpose, extra) in LIBRARIES.items():
        there = importlib.util.find_spec(name) is not None
        state = "installed" if there else f"missing: pip install 'paddle_ext[{extra}]'"
        rows.append((name, f"{state} ({purpose})"))
    show.pairs(rows)
    cells = [[name, title_of(name), summary(name)] for name in methods.available()]
    show.table(["method", "", ""], cells, text_columns=(0, 1, 2))


def summary(method: str) -> str:
    from ...methods import create

    return (inspect.getdoc(type(create(method))) or "").partition("\n\n")[0].replace("\n", " ")


def describe_method(name: str) -> None:
    from ... import methods

    options = methods.describe(name)
    show.say(f"{name}: {summary(name)}")
    cells = [[one.name, one.type, repr(one.default), one.help] for one in options]
    show.table(["option", "type", "default", ""], cells, text_columns=(0, 1, 2, 3))
    presets = type(methods.create(name)).presets
    for preset, changed in presets.items():
        if changed:
            listed = ", ".join(f"{key}={value!r}" for key, value in changed.items())
            show.say(f"--preset {preset}: {listed}")


def describe_bank(path: Path) -> None:
    from ...research.data import FeatureBank

    bank = FeatureBank.load(path).check_finite()
    show.say(f"{path}: {bank!r}")
    for name in bank.splits:
        show.say(f"split {name}: {bank.subset(split=name)!r}")
