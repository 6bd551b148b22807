"""Topics that nobody uses lose their runtime, and nothing else."""

from __future__ import annotations

from datetime import timedelta

from escapement import testing
