"""`escapement check`: the invariants between the log, the cursors and the index, in words.

Begin with ``check.py``, which reports findings (doctor/finding.py). ``repair.py`` mends what can be
derived from the log. The comparison of messages is that of `escapement pipeline audit`
(pipeline/auditing/survey.py), without Spark.
"""
