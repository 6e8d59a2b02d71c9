"""Model providers: which module a provider's models need, and which variables hold its key."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider of models, as it stands before the colon of a model name.

    `module` is the package of its client; `extra` installs it (`pydantic-ai-slim[extra]`). One of
    `keys` has to be set, or `keyless`, which names a server of the user's own; `settings` are
    other variables that its client reads.
    """

    module: str
    extra: str
    keys: tuple[str, ...]
    settings: tuple[str, ...] = ()
    keyless: tuple[str, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that its client reads."""
        return (*self.keys, *self.settings, *self.keyless)

    def lacks_key(self, environment: Mapping[str, str]) -> bool:
        """Says whether its models can't be called with these variables."""
        names = (*self.keys, *self.keyless)
        return bool(self.keys) and not any(environment.get(name) for name in names)


_OPENAI = Provider(
    "openai", "openai", ("OPENAI_API_KEY",), ("OPENAI_ORG_ID",), keyless=("OPENAI_BASE_URL",)
)
_GOOGLE = Provider("google.genai", "google", ("GOOGLE_API_KEY", "GEMINI_API_KEY"))

# Names and variables as in the documentation of pydantic-ai's providers.
PROVIDERS: dict[str, Provider] = {
    "openai": _OPENAI,
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
    "anthropic": Provider(
        "anthropic", "anthropic", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",)
    ),
    "google": _GOOGLE,
    "google-gla": _GOOGLE,
    "google-vertex": Provider(
        "google.genai",
        "google",
        (),
        ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
    ),
    "groq": Provider("groq", "groq", ("GROQ_API_KEY",), ("GROQ_BASE_URL",)),
    "mistral": Provider("mistralai", "mistral", ("MISTRAL_API_KEY",)),
    "cohere": Provider("cohere", "cohere", ("CO_API_KEY",)),
    "deepseek": Provider("openai", "openai", ("DEEPSEEK_API_KEY",)),
    "openrouter": Provider("openai", "openai", ("OPENROUTER_API_KEY",)),
    "bedrock": Provider(
        "boto3",
        "bedrock",
        (),
        (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
        ),
    ),
}


def provider_of(model: str | None) -> str | None:
    """Returns what stands before the colon of a model name; None without one."""
    name, colon, _ = (model or "").partition(":")
    return name if colon else None


def find_missing_keys(
    models: Mapping[str, str | None], environment: Mapping[str, str]
) -> list[str]:
    """Returns a sentence for each slot whose model needs a key that isn't there."""
    found: list[str] = []
    for slot, model in sorted(models.items()):
        provider = PROVIDERS.get(provider_of(model) or "")
        if provider is not None and provider.lacks_key(environment):
            names = " or ".join(provider.keys)
            found.append(f"model {model!r} (slot {slot!r}) needs a key: {names} is not set")
    return found
