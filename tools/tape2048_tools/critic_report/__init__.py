"""The report of a critic's examination: tables, figures, HTML."""
