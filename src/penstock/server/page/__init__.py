"""The page that `GET /` shows: its files, and Markdown for it."""
