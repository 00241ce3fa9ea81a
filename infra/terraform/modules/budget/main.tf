# Mail at half, at nine tenths, at all of it, and when the forecast says so. It alerts; it stops nothing.
resource "google_monitoring_notification_channel" "owner" {
  project      = var.project_id
  display_name = "dlock budget"
  type         = "email"

  labels = {
    email_address = var.alert_email
  }
}

resource "google_billing_budget" "month" {
  billing_account = var.billing_account
  display_name    = "dlock, a month"

  budget_filter {
    projects = ["projects/${var.project_id}"]
  }

  amount {
    specified_amount {
      currency_code = var.currency
      units         = tostring(var.monthly_amount)
    }
  }

  threshold_rules {
    threshold_percent = 0.5
  }

  threshold_rules {
    threshold_percent = 0.9
  }

  threshold_rules {
    threshold_percent = 1.0
  }

  threshold_rules {
    threshold_percent = 1.0
    spend_basis       = "FORECASTED_SPEND"
  }

  all_updates_rule {
    monitoring_notification_channels = [google_monitoring_notification_channel.owner.id]
    disable_default_iam_recipients   = false
  }
}
