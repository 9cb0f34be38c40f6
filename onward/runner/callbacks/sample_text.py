"""SampleText: what a language model writes, at each evaluation, into samples.txt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.graph.paths import writing
from onward.runner.callback import Callback
from onward.runner.data.text_files import Vocabulary
from onward.runner.data.text_tokenizer import MASK, TOKENS
from onward.runner.events import Evaluation
from onward.runner.plan.model_shapes import text_length
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run import Run

Array = np.ndarray[Any, Any]
_TEMPERATURE = 0.8


class SampleText(Callback):
    """Writes `count` tokens after each evaluation; the same ones for the same weights."""

    def __init__(self, vocabulary: Vocabulary, count: int, context: int | None) -> None:
        self.vocabulary, self.count, self.context = vocabulary, count, context
        self.last = ""  # for displays

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        inputs = run.plan.preprocessing.inputs
        output, known = run.plan.output, self.vocabulary.size

        def logits(tokens: Array) -> Array:
            columns = {TOKENS: tokens, MASK: np.ones_like(tokens)}
            feeds = {each.feed: columns[each.columns[0]].astype(each.dtype) for each in inputs}
            scores = np.asarray(run.session.predict(feeds)[output])
            return scores[..., :known]  # a model may have more tokens than the text

        seed = [run.config.seed, evaluation.step]
        tokens = generate(
            logits, [self.vocabulary.start], self.count, self.context, np.random.default_rng(seed)
        )
        self.last = self.vocabulary.decode(tokens[1:])
        with (
            writing(path := run.folder.path / "samples.txt"),
            path.open("a", encoding="utf-8") as file,
        ):
            file.write(f"--- step {evaluation.step}\n{self.last}\n")


def sample_text(plan: TrainingPlan, count: int) -> SampleText:
    """The callback for a model that reads tokens of a text."""
    vocabulary = plan.preprocessing.vocabulary
    read = {name for source in plan.preprocessing.inputs for name in source.columns}
    if vocabulary is None or vocabulary.columns or not read <= {TOKENS, MASK}:
        raise OptionError(
            "sample_text is for language models, trained on text files or a column of texts\n"
            "leave it out"
        )
    # a model of any length still has no more positions than its table of them
    context = plan.preprocessing.inputs[0].shape[1] or text_length(plan.adapted.model)
    return SampleText(vocabulary, count, context)


def generate(
    logits: Callable[[Array], Array],
    start: list[int],
    count: int,
    context: int | None,
    random: np.random.Generator,
    temperature: float = _TEMPERATURE,
) -> list[int]:
    """`start` and `count` more tokens, each drawn by the model's probabilities.

    `logits` takes (1, length) tokens and returns (1, length, vocabulary). With a `context`, the
    model reads exactly so many: fewer are padded behind, where a causal model does not look.
    """
    tokens = list(start)
    for _ in range(count):
        seen = tokens[-context:] if context else tokens
        padded = seen + [0] * (context - len(seen)) if context else seen
        scores = logits(np.array([padded], np.int64))[0, len(seen) - 1].astype(np.float64)
        shares = np.exp((scores - scores.max()) / temperature)
        cumulated = np.cumsum(shares / shares.sum())
        drawn = int(np.searchsorted(cumulated, random.random()))
        tokens.append(min(drawn, len(shares) - 1))
    return tokens
