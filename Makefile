# Two commands: `make demo` shows the library at work, `make test` runs everything that CI runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint clean browser docs

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

demo: $(VENV)/.base
	$(BIN)/fedvra demo

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Reports are tested in a real browser. Where there is none and it cannot be installed, those tests are skipped and say so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "no chromium: tests of reports in a browser will be skipped"

# Tests that start a real federation of processes come last and alone: they wait on each other, not on the other tests.
test: lint browser
	$(BIN)/python -m pytest -n 2 -m "not slow"
	$(BIN)/python -m pytest -m slow --durations=6

# The site; warnings are errors. The test of it builds the same.
docs: $(VENV)/.test
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf $(VENV) runs dist build docs/_build docs/api
