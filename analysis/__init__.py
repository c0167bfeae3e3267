"""What it means, from run directories alone: join, figures, verdict, findings, report, and what several runs say.
Modules beside the rooms are what all of them speak: words, arrays, limits, what was recorded, SQL of users."""
