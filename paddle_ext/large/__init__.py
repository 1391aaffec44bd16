"""One large task: rows in chunks, wherever they are."""
