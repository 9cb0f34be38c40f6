"""Attention of transformers' models, exported by torch in several ways, is recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.passes.composites import inline_calls
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.recognize_composites import recognise_composites

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]

LAYERS, BATCH, LENGTH, VOCABULARY = 2, 2, 16, 64
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": LAYERS, "intermediate_size": 64, "max_position_embeddings": 32}


def _gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 32}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, **sizes, **none, **ends)
    return transformers.GPT2LMHeadModel, config


def _bert() -> Any:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM, transformers.BertConfig(**SIZES, **none)


def _llama() -> Any:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False)
    return transformers.LlamaForCausalLM, config


MODELS = {"gpt2": _gpt2, "bert": _bert, "llama": _llama}
EXPORTS = {  # opset, sizes free, optimised
    "23": (23, False, True),
    "23 free": (23, True, False),
    "18": (18, False, False),
    "18 free": (18, True, True),
}


class _Logits(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def module(name: str, implementation: str) -> Any:
    torch.manual_seed(0)
    kind, config = MODELS[name]()
    return _Logits(kind._from_config(config, attn_implementation=implementation)).train()


def feeds(*, masked: bool) -> tuple[Any, ...]:
    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[0, 10:] = 0
    return (ids, mask) if masked else (ids,)


def exported(made: Any, export: str, *, masked: bool) -> ir.Model:
    opset, free, optimize = EXPORTS[export]
    sizes = {0: "batch", 1: "length"}
    names = ("input_ids", "attention_mask")[: 1 + masked]
    program = torch.onnx.export(
        made,
        feeds(masked=masked),
        dynamo=True,
        opset_version=opset,
        dynamic_shapes=dict.fromkeys(names, sizes) if free else None,
        optimize=optimize,
        verbose=False,
    )
    return PREPARE(program.model)


def parameters(model: ir.Model) -> list[str]:
    values = model.graph.initializers.items()
    return [n for n, v in values if n.startswith("model.") and v.dtype is ir.DataType.FLOAT]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_recognised(
    name: str, implementation: str, export: str, masked: bool
) -> None:
    model = exported(module(name, implementation), export, masked=masked)
    recognise_composites(model, parameters(model))
    found = [node for node in model.graph if node.op_type == "Attention"]
    assert len(found) == LAYERS
    assert not any(node.op_type == "Softmax" for node in model.graph)
    written_out = found[0].domain == "onward"
    assert written_out == (implementation == "eager" or export.startswith("18"))
    for node in found:
        mask = [*node.inputs, None][3]
        assert (mask is not None) == masked
        causal = name != "bert"
        if causal and masked and written_out:  # a finite number hides whole rows: it stays as it is
            causal = False
        elif mask is not None:
            assert mask.shape is not None and mask.shape[-2] == 1
        assert bool(node.attributes["is_causal"].value) == causal
        if name == "llama":
            assert [x.shape[1] for x in node.inputs[:3]] == [4, 2, 2]  # type: ignore[union-attr, index]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("export", ["23 free", "18"])  # optimised ones share equal parameters
@pytest.mark.parametrize("name", MODELS)
def test_gradients_by_fused_attention_are_torchs(name: str, export: str, masked: bool) -> None:
    from onward.providers.torch.provider import TorchProvider

    made = module(name, "sdpa")
    model = exported(made, export, masked=masked)
    wrt = [n for n in parameters(model) if model.graph.initializers[n].uses()]
    recognise_composites(model, wrt)
    names = extend(model, {model.graph.outputs[0].name: "dy"}, wrt, GRADIENTS, composites=True)
    provider = TorchProvider("TorchExecutionProvider", torch.device("cpu"))
    model = TRAINING(model)
    inline_calls(model, lambda call: provider.supports(call, model.opset_imports))
    model = TRAINING(model)
    given = feeds(masked=masked)
    y = made(*given)
    dy = torch.randn_like(y)
    y.backward(dy)
    results = provider.compile(model).run([*given, dy.detach()])
    found = dict(zip((value.name for value in model.graph.outputs), results, strict=True))
    assert len(wrt) > 10
    for parameter, value in made.named_parameters():
        if parameter in names:
            np.testing.assert_allclose(
                found[names[parameter]], value.grad, rtol=1e-3, atol=1e-4, err_msg=parameter
            )
