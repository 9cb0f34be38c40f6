"""FLOPs of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import pytest

from onward.graph.costs.node_costs import model_costs
from onward.graph.files import load
from tests.models_ml import classifier, dict_vectorizer, ml, model, table, zipped_classifier

_TREES: dict[str, Any] = {  # one of depth 2, one of depth 1
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0] * 8,
    "nodes_values": [1.0] * 8,
    "nodes_modes": [
        *("BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"),
        *("BRANCH_LEQ", "LEAF", "LEAF"),
    ],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
    "target_treeids": [0, 0, 0, 1, 1],
    "target_nodeids": [2, 3, 4, 1, 2],
    "target_ids": [0] * 5,
    "target_weights": [1.0] * 5,
    "n_targets": 1,
}


def test_a_classifier_costs_its_products() -> None:
    found = model_costs(load(classifier()), {"n": 5})
    scaled, products, softmax = 2 * 5 * 4, 5 * (2 * 12 + 3), 5 * 5 * 3
    assert (found.flops, found.total.basis) == (scaled + products + softmax, "rule")


def test_a_list_of_maps_costs_no_arithmetic_and_nothing_is_unknown() -> None:
    with_maps, without = (model_costs(load(m())) for m in (zipped_classifier, classifier))
    assert (with_maps.flops, with_maps.total.basis) == (without.flops, "rule")
    assert model_costs(load(dict_vectorizer())).flops == 2 * 3 + 1


@pytest.mark.parametrize(("kernel", "each"), [("LINEAR", 8), ("RBF", 12 + 2), ("POLY", 8 + 3)])
def test_a_support_vector_machine_costs_its_kernels(kernel: str, each: int) -> None:
    node = ml("SVMRegressor", ["x"], ["y"], coefficients=[0.5] * 3, support_vectors=[0.5] * 12,
              n_supports=3, rho=[0.0], kernel_type=kernel)  # fmt: skip
    assert model_costs(load(model([node], [table()], ["y"])), {"n": 2}).flops == 2 * (3 * each + 7)


def test_trees_cost_a_comparison_for_each_level() -> None:
    node = ml("TreeEnsembleRegressor", ["x"], ["y"], **_TREES)
    found = model_costs(load(model([node], [table()], ["y"], version=3)), {"n": 10})
    assert (found.flops, found.total.basis) == (10 * (2 + 1 + 2), "rule")
