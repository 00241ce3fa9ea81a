variable "project_id" {
  type = string
}

variable "billing_account" {
  type = string
}

variable "monthly_amount" {
  type = number

  validation {
    condition     = var.monthly_amount > 0
    error_message = "A budget of nothing alerts at once and never again."
  }
}

variable "currency" {
  type = string
}

variable "alert_email" {
  type = string
}
