"""The work of the job ``archive``: plan, write and verify files, and move them into the archive.

Begin with pipeline/archive.py, which runs the job. In this folder, ``plan`` divides the messages
among tasks, ``tasks`` writes the files and reads them back, and ``archive_folder`` moves them.
"""
