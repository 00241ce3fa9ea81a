# One PostgreSQL server. Two of these, since one that fails must not take the other with it.
resource "google_sql_database_instance" "server" {
  name                = var.name
  region              = var.region
  database_version    = "POSTGRES_16"
  deletion_protection = var.deletion_protection

  settings {
    edition           = "ENTERPRISE"
    tier              = var.tier
    availability_type = var.availability_type
    disk_size         = 10
    disk_type         = "PD_SSD"
    disk_autoresize   = false

    ip_configuration {
      ipv4_enabled    = false
      private_network = var.network
      ssl_mode        = "ENCRYPTED_ONLY"
    }

    backup_configuration {
      enabled                        = true
      point_in_time_recovery_enabled = true
      transaction_log_retention_days = 3

      backup_retention_settings {
        retained_backups = 7
      }
    }

    # A grant or a fence that is acknowledged is on disk.
    database_flags {
      name  = "synchronous_commit"
      value = "on"
    }

    maintenance_window {
      day  = 7
      hour = 3
    }

    insights_config {
      query_insights_enabled = true
    }
  }
}

resource "google_sql_database" "database" {
  name     = var.database
  instance = google_sql_database_instance.server.name
}
