"""Norm shapes of real models, from their published configurations."""

from dataclasses import dataclass, replace
from math import prod

from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The input of one normalization layer of a model, at its usual size, and the source of these numbers."""

    model: str
    op: str
    shape: tuple[int, ...]
    eps: float
    source: str
    dtype: str = "bfloat16"
    weight_dtype: str | None = None
    num_groups: int | None = None
    weight_offset: float = 0.0
    layout: str = "contiguous"


CPU_ELEMENTS = 2**22  # of x: a float64 reference takes about half a gibibyte

_HF = "config.json of "
_SD = "Stable Diffusion 1.5"
_UNET = "U-Net with norm_num_groups 32, the default"
_LAST = _UNET + ", in channels_last: the documentation of diffusers, Memory and speed"
_VISION = "torchvision/models/"
_RESNET = _VISION + "resnet.py"
_EXAMPLES = "pytorch/examples, "
_STYLE = _EXAMPLES + "fast_neural_style/neural_style/transformer_net.py at 256×256"
_CYCLE = "junyanz/pytorch-CycleGAN-and-pix2pix, models/networks.py, ResnetGenerator at 256×256"
MODELS = (
    ModelShape("GPT-2", "layernorm", (8, 1024, 768), 1e-5, _HF + "openai-community/gpt2"),
    ModelShape("GPT-2 XL", "layernorm", (4, 1024, 1600), 1e-5, _HF + "openai-community/gpt2-xl"),
    ModelShape("BERT-base", "layernorm", (32, 512, 768), 1e-12, _HF + "google-bert/bert-base-uncased", "float16"),
    ModelShape("BERT-large", "layernorm", (16, 512, 1024), 1e-12, _HF + "google-bert/bert-large-uncased", "float32"),
    ModelShape("ViT-B/16", "layernorm", (64, 197, 768), 1e-12, _HF + "google/vit-base-patch16-224"),
    ModelShape("ViT-H/14", "layernorm", (16, 257, 1280), 1e-12, _HF + "google/vit-huge-patch14-224-in21k", "float16"),
    ModelShape("Whisper large-v3", "layernorm", (8, 1500, 1280), 1e-5, _HF + "openai/whisper-large-v3", "float16"),
    ModelShape("Llama-3 8B", "rmsnorm", (1, 8192, 4096), 1e-5, _HF + "meta-llama/Meta-Llama-3-8B"),
    ModelShape("Llama-3 70B", "rmsnorm", (1, 8192, 8192), 1e-5, _HF + "meta-llama/Meta-Llama-3-70B"),
    ModelShape("Qwen2.5 7B", "rmsnorm", (2, 4096, 3584), 1e-6, _HF + "Qwen/Qwen2.5-7B"),
    ModelShape("Qwen3 8B, query heads", "rmsnorm", (1, 4096, 32, 128), 1e-6, _HF + "Qwen/Qwen3-8B"),
    ModelShape("Gemma-2 9B", "rmsnorm", (1, 4096, 3584), 1e-6, _HF + "google/gemma-2-9b", weight_offset=1.0),
    ModelShape("T5-large", "rmsnorm", (8, 512, 1024), 1e-6, _HF + "google-t5/t5-large", "float16", "float32"),
    ModelShape(_SD, "groupnorm", (2, 320, 64, 64), 1e-5, _UNET, "float16", None, 32),
    ModelShape(_SD, "groupnorm", (2, 640, 32, 32), 1e-5, _UNET, "float16", None, 32),
    ModelShape(_SD, "groupnorm", (2, 2560, 8, 8), 1e-5, _UNET, "float16", None, 32),
    ModelShape(_SD, "groupnorm", (2, 320, 64, 64), 1e-5, _LAST, "float16", None, 32, layout="channels_last"),
    ModelShape(_SD, "groupnorm", (2, 960, 64, 64), 1e-5, _LAST, "float16", None, 32, layout="channels_last"),
    ModelShape("Stable Diffusion VAE", "groupnorm", (1, 128, 512, 512), 1e-6, "its decoder", "bfloat16", None, 32),
    ModelShape("X = 64", "groupnorm", (1, 32, 64, 64), 1e-5, "FlyMy.AI's benchmark", "float32", None, 8),
    ModelShape("X = 512", "groupnorm", (1, 32, 512, 512), 1e-5, "FlyMy.AI's benchmark", "float32", None, 8),
    ModelShape("X = 1024", "groupnorm", (1, 32, 1024, 1024), 1e-5, "FlyMy.AI's benchmark", "float32", None, 8),
    ModelShape("X = 2240", "groupnorm", (1, 32, 2240, 2240), 1e-5, "FlyMy.AI's benchmark", "float32", None, 8),
    ModelShape("ResNet-50, stem", "batchnorm", (32, 64, 112, 112), 1e-5, _RESNET, "float32"),
    ModelShape("ResNet-50, last stage", "batchnorm", (32, 2048, 7, 7), 1e-5, _RESNET, "float16", "float32"),
    ModelShape("VGG-16 BN", "batchnorm", (32, 512, 14, 14), 1e-5, _VISION + "vgg.py", "float32"),
    ModelShape("MobileNetV3-large", "batchnorm", (64, 960, 7, 7), 1e-3, _VISION + "mobilenetv3.py", "float32"),
    ModelShape("Inception v3", "batchnorm", (32, 64, 35, 35), 1e-3, _VISION + "inception.py", "bfloat16", "float32"),
    ModelShape("DCGAN generator", "batchnorm", (64, 512, 4, 4), 1e-5, _EXAMPLES + "dcgan/main.py", "float32"),
    ModelShape("style transfer", "instancenorm", (4, 32, 256, 256), 1e-5, _STYLE, "float32"),
    ModelShape("style transfer", "instancenorm", (4, 64, 128, 128), 1e-5, _STYLE, "float32"),
    ModelShape("style transfer", "instancenorm", (4, 128, 64, 64), 1e-5, _STYLE, "float16", "float32"),
    ModelShape("CycleGAN", "instancenorm", (1, 64, 256, 256), 1e-5, _CYCLE, "float32"),
    ModelShape("CycleGAN", "instancenorm", (1, 128, 128, 128), 1e-5, _CYCLE, "float32"),
    ModelShape("CycleGAN", "instancenorm", (1, 256, 64, 64), 1e-5, _CYCLE, "bfloat16", "float32"),
)


def model_cases(op: Op, *, full: bool, dtypes: tuple[str, ...]) -> tuple[list[CaseSpec], list[str]]:
    """Return the models' cases for one operator, and the names of the models left out.

    `full` keeps their sizes. Otherwise, for a CPU, cases have the full row length but few rows or groups; a model whose
    single group is too large is left out.
    """
    norm = op.chain.norm if op.chain else op.name.removeprefix("add_")
    norm = norm.replace("l2norm", "rmsnorm").replace("partial_", "")  # its rows are as long
    chosen = [model for model in MODELS if norm.startswith(model.op) and model.dtype in dtypes]
    same = ("shape", "dtype", "weight_dtype", "num_groups", "eps", "weight_offset")
    specs = {}
    for model in chosen:
        fields = {name: getattr(model, name) for name in same}
        spec = CaseSpec(**fields, data="channel", x_layout=model.layout, dy_layout=model.layout)
        specs[model] = spec if full else _few_rows(spec, op)
    large = [model for model, spec in specs.items() if not full and prod(spec.shape) > CPU_ELEMENTS]
    return [spec for model, spec in specs.items() if model not in large], [model.model for model in large]


def _few_rows(spec: CaseSpec, op: Op) -> CaseSpec:
    if op.view == "channels":
        return replace(spec, shape=(spec.shape[0], 2, *spec.shape[2:]))
    if op.view == "groups" and spec.num_groups is None:
        return replace(spec, shape=(1, 2, *spec.shape[2:]))
    if spec.num_groups is None:
        return replace(spec, shape=(1, 3, spec.shape[-1]))
    channels = spec.shape[1] // spec.num_groups
    groups = 1 if channels * prod(spec.shape[2:]) > CPU_ELEMENTS // 4 else 2
    return replace(spec, shape=(1, groups * channels, *spec.shape[2:]), num_groups=groups)
