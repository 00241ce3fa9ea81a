output "connection_name" {
  value = google_sql_database_instance.server.connection_name
}
