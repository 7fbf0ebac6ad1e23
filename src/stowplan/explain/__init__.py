"""Words, tables and data for a Decision: why a pod lands where it does, or nowhere."""
