"""Models of transformers: load one from its folder, and know what its inputs and outputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from onward.errors import FileMissing, ModelError, OptionError, PackageMissing
from onward.message_text import first_line


def load_folder(folder: Path) -> nn.Module:
    """The model of a folder, with the head that it was saved with; nothing is downloaded."""
    if not (folder / "config.json").is_file():
        raise FileMissing(
            f"{folder} has no config.json: it is not the folder of a Hugging Face model\n"
            "write package.module:attribute or file.py:attribute for a module of Python"
        )
    try:
        import transformers
    except ImportError as error:
        raise PackageMissing(
            "a Hugging Face model needs transformers\ninstall it with: pip install transformers"
        ) from error
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        config.use_cache = False
        name = (getattr(config, "architectures", None) or [""])[0]
        kind: Any = getattr(transformers, name, transformers.AutoModel)
        found: nn.Module = kind.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError) as error:
        first = first_line(error)
        raise ModelError(f"{folder} cannot be loaded by transformers: {first}") from error
    return found


def default_inputs(module: nn.Module) -> list[str]:
    """The inputs of a Hugging Face model as `read_inputs` takes them."""
    main, config = getattr(module, "main_input_name", ""), getattr(module, "config", None)
    if main == "input_ids":
        return ["input_ids=int64[batch,sequence]", "attention_mask=int64[batch,sequence]"]
    if main == "pixel_values":
        channels, size = getattr(config, "num_channels", 3), getattr(config, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return [f"pixel_values=float32[batch,{channels},{height},{width}]"]
    raise OptionError(
        f"the inputs of {type(module).__name__} are not known\n"
        "give them: --inputs 'x=float32[batch,3,224,224]'"
    )


def predicts_next_tokens(module: nn.Module) -> bool:
    """Whether a model is a causal language model: by its class, as transformers decides it."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:  # then the module is not one of transformers
        return False
    return type(module).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
