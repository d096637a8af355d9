"""The command line: one thin file per verb. A verb parses, calls one library function, prints one result."""
