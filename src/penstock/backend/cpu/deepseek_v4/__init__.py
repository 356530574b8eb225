"""DeepSeek-V4's ops on the CPU: each is one native call on what was described to the native code once."""
