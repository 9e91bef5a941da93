"""Parts that several formats share: JSON lines, the recording that readers build, facts that writers need."""
