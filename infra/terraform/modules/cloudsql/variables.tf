variable "name" {
  type = string
}

variable "database" {
  type = string
}

variable "region" {
  type = string
}

variable "network" {
  type = string
}

variable "availability_type" {
  type        = string
  description = "REGIONAL: a synchronous standby in another zone. ZONAL: none."

  validation {
    condition     = contains(["REGIONAL", "ZONAL"], var.availability_type)
    error_message = "REGIONAL or ZONAL."
  }
}

variable "tier" {
  type    = string
  default = "db-custom-1-3840"
}

variable "deletion_protection" {
  type    = bool
  default = false
}
