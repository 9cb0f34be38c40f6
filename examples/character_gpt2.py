"""Pre-train GPT-2 on characters: shards of text, perplexity, a sample of what it writes, resume.

python examples/character_gpt2.py

The text is this repository's documentation, each page a file of its own; one page is held out. Stop
it with Ctrl-C and start it again: it goes on where it was. `--steps 4000` trains it for longer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onward

DOCS = Path(__file__).parent.parent / "docs"
HELD_OUT = "quickstart"  # a page
NAME = "characters"


def write_shards(folder: Path) -> list[Path]:
    """The pages as .txt files, without characters that ASCII has not."""
    folder.mkdir(exist_ok=True)
    shards = []
    for page in sorted(DOCS.glob("*.md")):
        shards.append(folder / f"{page.stem}.txt")
        shards[-1].write_bytes(page.read_text("utf-8").encode("ascii", "ignore"))
    return shards


def main(steps: int) -> None:
    shards = write_shards(Path("shards"))
    [held_out] = [shard for shard in shards if shard.stem == HELD_OUT]
    characters = {character for shard in shards for character in shard.read_text()}
    model = onward.new_model("gpt2", layers=2, width=128, vocabulary=len(characters), context=64)
    started = Path("runs", NAME).exists()
    run = onward.train(
        model,
        [shard for shard in shards if shard != held_out],
        validation=held_out,
        max_steps=steps,
        epochs=1000,  # more than enough
        batch_size=16,
        learning_rate=2e-3,
        warmup=0.05,
        max_grad_norm=1.0,
        evaluate_every=max(steps // 4, 1),
        sample_text=200,
        name=NAME,
        resume=started,
    )
    print(f"{'went on to' if started else 'reached'} step {run.steps} in {run.seconds:.0f} s")
    print(f"perplexity on {held_out}: {run.metrics['val_perplexity']:.2f} of {len(characters)}")
    print((run.folder.path / "samples.txt").read_text().split("--- ")[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    main(parser.parse_args().steps)
