mod prompt;
