"""What each client needs to work with a Penstock server: files, environment, command.

A model that streams from disk may read a prompt for minutes, so clients are told to be patient.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.clients.config_file import ConfigFile
from penstock.clients.json_file import JsonFile
from penstock.clients.target import Target
from penstock.clients.toml_file import TomlTable
from penstock.clients.yaml_file import YamlFields, YamlItem

PATIENCE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Setup:
    """command: what starts the client, with `environment` set.  files: what it reads; needed: it does not work
    without them, otherwise they only save typing.  note: what a person should know."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    files: tuple[ConfigFile, ...] = ()
    needed: bool = False
    note: str = ""

    def unfit_file(self) -> Path | None:
        """A file that has to be written before the client works: one that it needs and that does not say what it
        should, or one that says something else, which counts more than the environment."""
        for file in self.files:
            if not file.written() if self.needed else isinstance(file, JsonFile) and file.contradicts():
                return file.path
        return None


def opencode(target: Target) -> Setup:
    model = {
        "name": target.model,
        "reasoning": True,
        "tool_call": True,
        "limit": {"context": target.context, "output": target.output},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Penstock",
        "options": {"baseURL": target.openai, "apiKey": target.token, "timeout": PATIENCE_MS},
        "models": {target.model: model},
    }
    content = {"$schema": "https://opencode.ai/config.json", "provider": {"penstock": provider}}
    path = _folder("XDG_CONFIG_HOME", ".config") / "opencode" / "opencode.json"
    command = ("opencode", "--model", f"penstock/{target.model}")
    return Setup(command, files=(JsonFile(path, content),), needed=True)


def codex(target: Target) -> Setup:
    fields: dict[str, str | int | bool] = {
        "name": "Penstock",
        "base_url": target.openai,
        "wire_api": "responses",
        "stream_idle_timeout_ms": PATIENCE_MS,
    }
    key = {} if target.key is None else {"PENSTOCK_API_KEY": target.key}
    if key:
        fields["env_key"] = "PENSTOCK_API_KEY"
    path = _folder("CODEX_HOME", ".codex") / "config.toml"
    # The server has no tools of its own, so it refuses to be offered a search of the web.
    choices = ("model_provider=penstock", f"model_context_window={target.context}", "web_search=disabled")
    command = ("codex", "--model", target.model, *(word for choice in choices for word in ("-c", choice)))
    return Setup(command, key, (TomlTable(path, "model_providers.penstock", fields),), needed=True)


def claude(target: Target) -> Setup:
    roles = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    environment = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.token,
        "ANTHROPIC_API_KEY": "",  # one from elsewhere would count more
        **{f"ANTHROPIC_{role}": target.model for role in roles},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it changes within a prompt that could be recognised
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(PATIENCE_MS),
        "API_TIMEOUT_MS": str(PATIENCE_MS),
    }
    path = _folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
    note = "--write makes Penstock what every `claude` uses."
    return Setup(("claude",), environment, (JsonFile(path, {"env": environment}),), note=note)


def pi(target: Target) -> Setup:
    compat = {
        "supportsStore": False,
        "supportsDeveloperRole": False,
        "supportsStrictMode": False,
        "maxTokensField": "max_tokens",
        "thinkingFormat": "deepseek",
        "requiresReasoningContentOnAssistantMessages": True,
    }
    levels = {"minimal": None, "low": "low", "medium": None, "high": "high", "xhigh": "max"}
    model = {
        "id": target.model,
        "name": target.model,
        "reasoning": True,
        "thinkingLevelMap": levels,  # those that the model has
        "contextWindow": target.context,
        "maxTokens": target.output,
    }
    provider = {
        "baseUrl": target.openai,
        "api": "openai-completions",
        "apiKey": target.token,
        "compat": compat,
        "models": [model],
    }
    path = _folder("PI_CODING_AGENT_DIR", ".pi/agent") / "models.json"
    command = ("pi", "--provider", "penstock", "--model", target.model)
    return Setup(command, files=(JsonFile(path, {"providers": {"penstock": provider}}),), needed=True)


def aider(target: Target) -> Setup:
    name = f"openai/{target.model}"  # the prefix says which API to speak
    limits: dict[str, Any] = {
        "max_tokens": target.output,
        "max_input_tokens": target.context,
        "max_output_tokens": target.output,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    settings: dict[str, str | int | bool] = {
        "model": name,
        "openai-api-base": target.openai,
        "openai-api-key": target.token,
        "timeout": PATIENCE_MS // 1000,
    }
    files = (
        JsonFile(Path.home() / ".aider.model.metadata.json", {name: limits}),
        YamlFields(Path.home() / ".aider.conf.yml", settings),
    )
    environment = {"OPENAI_API_BASE": target.openai, "OPENAI_API_KEY": target.token}
    return Setup(("aider", "--model", name), environment, files)


def open_webui(target: Target) -> Setup:
    environment = {
        "OPENAI_API_BASE_URLS": target.openai,
        "OPENAI_API_KEYS": target.token,
        "ENABLE_OLLAMA_API": "False",
    }
    note = "Open WebUI keeps the connections of its first start; later ones are added in its admin settings."
    return Setup(("open-webui", "serve", "--port", "3000"), environment, note=note)


def continue_(target: Target) -> Setup:
    model = {
        "name": "Penstock",
        "provider": "openai",
        "model": target.model,
        "apiBase": target.openai,
        "apiKey": target.token,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": target.context, "maxTokens": target.output},
        "requestOptions": {"timeout": PATIENCE_MS},
    }
    path = _folder("CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml"
    head = {"name": "Local", "version": "1.0.0", "schema": "v1"}
    note = "In an editor the extension reads the file; `cn` is Continue for a terminal."
    return Setup(("cn",), files=(YamlItem(path, "models", model, head),), needed=True, note=note)


SETUPS: Final[dict[str, Callable[[Target], Setup]]] = {
    "opencode": opencode,
    "codex": codex,
    "claude": claude,
    "pi": pi,
    "aider": aider,
    "open-webui": open_webui,
    "continue": continue_,
}


def _folder(variable: str, place: str) -> Path:
    """Where a client keeps its settings: where its own variable says, or below the home folder."""
    chosen = os.environ.get(variable)
    return Path(chosen) if chosen else Path.home() / place
