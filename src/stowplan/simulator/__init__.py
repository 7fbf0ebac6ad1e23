"""What-if: what would become of pods if something about a cluster were different. Nothing real changes.

from stowplan.simulator import WhatIf

what_if = WhatIf(objects)          # nodes, pods and all else that a scheduler looks at
what_if.drain("worker-a1")
for fate in what_if.run().pending:
    print(fate.pod.key, fate.message)
"""

from stowplan.simulator.outcome import Cause, Ending, Fate, Outcome
from stowplan.simulator.whatif import WhatIf

__all__ = ["Cause", "Ending", "Fate", "Outcome", "WhatIf"]
