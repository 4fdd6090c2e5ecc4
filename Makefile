# Everything a checkout needs. Each target makes .venv ready first (scripts/environment.py).
#
#   make demo       a year of flights in a store: transactions, kill, compaction, snapshot; delays by Spark
#   make test       the tests; make test ARGS="-k index" picks some
#   make lint       formatting, rules, types, spelling
#   make bench      the table of targets at real size; JSON beside it
#   make sanitize   unit and property tests under ASan and UBSan
#   make lock       renew requirements/lock.txt from the ranges in pyproject.toml
#
# make PYTHON=python3.12 chooses the Python; it needs 3.11 or later with headers, and a C compiler.

PYTHON ?= python3
ARGS ?=
chosen := $(if $(filter file,$(origin PYTHON)),,--chosen)
python := .venv/bin/python

# Tests and the demo start hundreds of programs: without its cache each compiles a thousand modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench sanitize lock clean

help:
	@sed -n 's/^#   make/make/p' Makefile

setup:
	@sh scripts/setup.sh $(chosen) "$(PYTHON)"

demo: setup
	@sh scripts/demo.sh

test: setup
	@sh scripts/test.sh $(ARGS)

lint: setup
	@sh scripts/check

bench: setup
	@$(python) -m benchmarks $(ARGS)

sanitize: setup
	@sh scripts/sanitize.sh $(ARGS)

lock: setup
	@sh scripts/lock.sh

clean:
	rm -rf .venv build dist src/logstore/_native/_core*.so
