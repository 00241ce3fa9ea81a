variable "project_id" {
  type    = string
  default = "dlock-lab"
}

variable "region" {
  type    = string
  default = "europe-central2"
}

variable "authorized_networks" {
  type        = list(string)
  description = "CIDR ranges that reach the cluster's API server. Empty: all, who must still authenticate."
  default     = []
}
