"""The forwards of a model's modules that an engine replaces, and gives back."""

from typing import Any

from shardwise.adoption import Adoption, Announced, Common, adopt
from shardwise.block_checkpoints import checkpoint_blocks
from shardwise.checkpointing import inputs_of_engine
from shardwise.wiring import Wiring


class ReplacedForwards:
    """Modules of known families run on our operations; blocks are computed again in backward.

    Attributes: ``announced``, which the engine keeps up to date; ``checkpoint_inputs``, how all
    checkpoints in the engine's forward keep their inputs, None: as the program configured.
    """

    def __init__(self, engine: Any, wiring: Wiring):
        self.announced = Announced(
            loss_scale=wiring.core.loss_scale(),
            accumulation_steps=engine.gradient_accumulation_steps(),
        )
        self.checkpoint_inputs = inputs_of_engine(engine.resolved_config)
        self._adoption = self._adopt(engine, wiring)
        try:
            if self._adoption.common.fp8 != "off":
                self._adoption.check_fp8(engine.module)
            self._blocks = checkpoint_blocks(engine, wiring.units)
        except BaseException:
            self._adoption.undo()
            raise

    def _adopt(self, engine: Any, wiring: Wiring) -> Adoption:
        """What ``shardwise.fused_layers`` asks for, and ``shardwise.fp8`` of it."""
        setting = engine.config_value("shardwise.fused_layers")
        fp8 = engine.config_value("shardwise.fp8")
        recomputes = engine.config_value("shardwise.activation_checkpointing")
        common = Common(
            hands_on=engine.zero_optimization_stage() < 2 and recomputes == "off",
            in_place=recomputes != "selective",
            fp8=fp8,
        )
        needed = engine.device.type == "cuda" or fp8 != "off"
        wanted = setting == "on" or (setting == "auto" and needed)
        adoption = adopt(engine.module, wanted, setting == "auto", common)
        for model, head in adoption.heads():
            head.around = wiring.around(model.lm_head.weight)
            head.announced = self.announced
        return adoption

    def restore(self) -> None:
        """Gives the modules their own forwards back."""
        self._blocks.restore()
        self._adoption.undo()
