"""Time int8 forms of MiniLM and MobileNetV2 with onnxruntime-web in Node.

    npm install --prefix ~/.cache/onward/node onnxruntime-web
    python benchmarks/edge.py [--node-modules FOLDER] [--batch 1] [NAME ...]

CPU time, one thread, the forms of a model in turns. The models are those of
benchmarks/compression_models.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compression_models import calibration, path
from onward.compress.edge.int8_candidates import int8_candidates
from onward.compress.edge.node_timing import find_package, package_version, time_in_node
from onward.graph.files import load

DROP = 0.05  # of the outputs' similarity
ROWS = 64  # of calibration data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["minilm", "mobilenetv2"])
    parser.add_argument("--node-modules", default=None)
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    version = package_version(find_package(arguments.node_modules))
    print(f"onnxruntime-web {version}, batch {arguments.batch}")
    print("| model | form | ms | times as fast | cosine |\n|---|---|---|---|---|")
    for name in arguments.names:
        model = load(path(name))
        known = {str(value.name) for value in model.graph.inputs}
        data = {key: rows[:ROWS] for key, rows in calibration(name).items() if key in known}
        forms = {"float32": model, **int8_candidates(model, data, drop=DROP)}
        feeds = {key: rows[: arguments.batch] for key, rows in data.items()}
        times = time_in_node(forms, feeds, node_modules=arguments.node_modules)
        first = times["float32"].seconds or float("nan")
        for form, time in times.items():
            if time.seconds is None:
                print(f"| {name} | {form} | {time.error} | | |")
                continue
            ratio, cosine = first / time.seconds, time.similarity or 0.0
            print(f"| {name} | {form} | {time.seconds * 1e3:.1f} | {ratio:.2f} | {cosine:.4f} |")


if __name__ == "__main__":
    main()
