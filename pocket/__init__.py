"""The pocket model: a small DeepSeek-V4 trained from scratch on data that is generated, not collected."""
