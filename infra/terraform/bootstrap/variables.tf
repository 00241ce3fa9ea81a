variable "project_id" {
  type        = string
  description = "An existing project with billing."
  default     = "dlock-lab"
}

variable "region" {
  type        = string
  description = "Where the state is kept."
  default     = "europe-central2"
}

variable "billing_account" {
  type        = string
  description = "XXXXXX-XXXXXX-XXXXXX. No default: it is not for a repository."
}

variable "alert_email" {
  type        = string
  description = "Who is told when money is spent."
}

variable "monthly_amount" {
  type        = number
  description = "The budget of a month, in whole units of the currency."
  default     = 60
}

variable "currency" {
  type        = string
  description = "That of the billing account."
  default     = "EUR"
}
