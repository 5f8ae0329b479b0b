"""edlm data prepare"""

from typing import Annotated

from cyclopts import App, Parameter

from edlm.data.config import DataConfig

app = App(help="Prepare data.")


@app.command
def prepare(*, data: Annotated[DataConfig, Parameter(name="*")] = DataConfig(), json: bool = False) -> None:
    """Tokenise a corpus once into a memory-mapped cache that training and evaluation share.

    Parameters
    ----------
    json
        Print what was prepared as JSON.
    """
    from edlm.commands.output import print_json, print_table
    from edlm.data import prepare as prepare_corpus

    about = prepare_corpus(data).describe()
    print_json(about) if json else print_table(about)
