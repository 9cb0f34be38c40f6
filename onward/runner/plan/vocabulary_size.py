"""Check that a model has a row of its embedding, and an output, for each token of a vocabulary."""

from __future__ import annotations

import onnx_ir as ir

from onward.errors import DataError
from onward.runner.data.text_files import Vocabulary
from onward.runner.data.text_tokenizer import TOKENS, TextTokenizer
from onward.runner.plan.model_shapes import ModelPorts, TensorPort
from onward.runner.plan.token_inputs import token_inputs


def check_vocabulary(
    vocabulary: Vocabulary | None,
    model: ir.Model,
    ports: ModelPorts,
    port: TensorPort,
    axis: int | None,
) -> None:
    """Refuse a vocabulary that is too large; `axis` is that of the classes of output `port`.

    The outputs of a language model are tokens, those of a classifier of texts are not.
    """
    if vocabulary is None:
        return
    names = {name for name, field in token_inputs(ports).items() if field == TOKENS}
    sizes = [
        int(node.inputs[0].shape.numpy()[0])
        for node in model.graph
        if node.op_type == "Gather" and node.inputs[1] is not None
        if node.inputs[1].name in names
        if node.inputs[0] is not None and node.inputs[0].shape is not None
        if node.inputs[0].is_initializer()
    ]
    if axis is not None and not vocabulary.columns and (outputs := port.shape[axis]) is not None:
        sizes.append(outputs)
    count = vocabulary.size
    if count <= min(sizes, default=count):
        return
    if isinstance(vocabulary, TextTokenizer):
        raise DataError(
            f"the tokenizer has {count:,} tokens, the model {min(sizes):,}\n"
            "give the tokenizer.json of this model, or use a model of a larger vocabulary"
        )
    raise DataError(
        f"the text has {count} different characters, the model has {min(sizes)} tokens\n"
        f"use a model of a larger vocabulary: onward new gpt2 --vocabulary {count}"
    )
