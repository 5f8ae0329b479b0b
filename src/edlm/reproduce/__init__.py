"""The paper's tables and figures, one module each: what is measured, its table, its plot."""
