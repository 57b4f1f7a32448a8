mod discovery;
