"""Coverage-guided fuzzing: ``make fuzz COUNT=1000000``.

``targets.py`` has the functions that are fuzzed, without the fuzzer. The tests in
``tests/unit/fuzz`` call the same functions with input of hypothesis.
"""
