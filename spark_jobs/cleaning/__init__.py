"""From raw text to judged text: extraction, repair, language, quality rules."""
