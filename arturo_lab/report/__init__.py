"""What runs come to: tables, statistics, figures and pages."""
