"""Refuse settings of fine-tuning that do not work together, or that would have no effect."""

from __future__ import annotations

from onward.errors import OptionError
from onward.runner.config import TrainConfig

# (setting, setting that excludes it, why, what to do)
_CONFLICTS = [
    ("lora", "train_only", "LoRA trains adapters, not the weights", "choose layers: lora_targets"),
    ("lora", "freeze", "LoRA leaves all weights as they are", "choose layers: lora_targets"),
    ("lora", "quantization_aware", "adapters are merged in float", "train one, then the other"),
    ("lora", "unfreeze_every", "LoRA unfreezes no weights", "leave one of them out"),
    ("lora", "layer_decay", "adapters have one learning rate", "leave one of them out"),
    ("dora", "lora_dropout", "DoRA normalises the weight itself", "set lora_dropout to 0"),
]
_OF_LORA = ("lora_targets", "lora_alpha", "lora_dropout", "dora", "keep_adapter")


def check_settings(config: TrainConfig) -> None:
    """Raise an OptionError for the first combination that cannot work.

    >>> from onward.runner.config import make_config
    >>> check_settings(make_config(dora=True))
    Traceback (most recent call last):
    onward.errors.OptionError: dora is a setting of adapters, and lora is not set
    set lora as well, such as lora=8
    """
    given = {name for name in TrainConfig.model_fields if _is_changed(config, name)}
    for one, other, why, advice in _CONFLICTS:
        if one in given and other in given:
            raise OptionError(f"{one} cannot be combined with {other}: {why}\n{advice}")
    for name in _OF_LORA:
        if name in given and "lora" not in given:
            raise OptionError(
                f"{name} is a setting of adapters, and lora is not set\n"
                "set lora as well, such as lora=8"
            )


def _is_changed(config: TrainConfig, name: str) -> bool:
    return bool(getattr(config, name) != TrainConfig.model_fields[name].default)
