"""What every room stands on: errors, files, formats, progress and Ctrl-C."""
