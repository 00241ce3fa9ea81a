-- Several statements, one of which needs the one before it.
CREATE TABLE note (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  text text NOT NULL UNIQUE,
  size int NOT NULL CHECK (size >= 0)
);
INSERT INTO note (text, size) VALUES ('semicolons; are no problem, and ''quotes'' neither', 1);
