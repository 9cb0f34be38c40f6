"""load_from_json by the name that it has in onnxruntime.training.ortmodule.experimental."""

from onward.training.experimental.json_config import load_from_json as load_from_json
