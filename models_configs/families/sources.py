"""Public sources of figures that several families share."""

__all__ = ["GENZ", "LITGPT", "aiconfigurator"]

LITGPT = "github Lightning-AI/litgpt@26857050fe3f litgpt/config.py"
GENZ = "github abhibambhaniya/GenZ-LLM-Analyzer GenZ/Models/Model_sets"


def aiconfigurator(repository: str) -> str:
    """The `config.json` of a Hugging Face repository that this package carries."""
    file = repository.replace("/", "--") + "_config.json"
    return f"PyPI aiconfigurator-core 0.12.0, model_configs/{file} (github ai-dynamo/aiconfigurator)"
