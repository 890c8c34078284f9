"""Show: results as tables, pictures, one page, and files of other tools."""
