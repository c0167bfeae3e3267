"""The rules: conditions over measures, their classification and confidence."""
